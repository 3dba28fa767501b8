"""The careful writer: staging, journal, lock, verification, and everything that lies beside the weights."""
