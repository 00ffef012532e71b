"""Run compiled loops: threads, the processor, memory pages and its cache."""
