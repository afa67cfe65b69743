"""The click log: files in, Arrow record batches out, cut into work units."""
