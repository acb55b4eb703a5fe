"""Reading what people have, in the format they have it."""
