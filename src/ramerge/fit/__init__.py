"""Make base and agents alike: names, heads, vocabularies, tokenizers, layers, configurations."""
