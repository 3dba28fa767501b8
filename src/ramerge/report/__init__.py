"""Reports from probe records: terminal tables and one self-contained HTML file."""
