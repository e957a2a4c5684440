"""Public models of every field, written in plain PyTorch: one family to a file.

Their graphs ship ready made, so torch is only needed to record one anew. A family's file has
`build(**options)`, which makes the module, and `example_inputs(batch, **options)` (of models that
read sequences: `example_inputs(batch, sequence_length, **options)`), which makes its arguments.
Models whose training loss is cheap to write return it; classifiers return logits, of which the
sum is taken.
"""
