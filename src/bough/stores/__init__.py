"""Where sessions lie: the contract (`store`), its laws as a suite (`conformance`), and the stores."""
