"""Where `dg scaffold defs` puts what is added."""
