"""The merge itself: passes over chunks, λ, records, threads."""
