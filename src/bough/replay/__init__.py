"""Re-executing a recorded session without effects, and saying what became different."""
