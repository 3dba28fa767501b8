"""A miniature base with three trained agents: the demo's models, tasks and scores."""
