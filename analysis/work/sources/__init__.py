"""Sources of work that is computed: the model, shapes that were recorded, shapes in names."""
