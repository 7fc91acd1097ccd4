"""Stores: the contract (`base`), how an address names one (`address`), the steps databases share, and the stores themselves."""
