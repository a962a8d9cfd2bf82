"""What a step costs: work of every place in a step, of whole steps, and decode's memory traffic."""
