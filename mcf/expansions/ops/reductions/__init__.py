"""Implement sums, norms, moments, extremes and scans."""
