"""What several tests share: models, adapters, servers, oracles."""
