"""The catalogue: rules on hand-written events, and their pages by running them."""
