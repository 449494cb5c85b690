"""Other people's models and files behind the interfaces of this package: the only place that imports transformers."""
