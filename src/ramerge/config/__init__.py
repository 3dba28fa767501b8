"""From YAML files and flags to a `Job`; strict, with line numbers and nearest names."""
