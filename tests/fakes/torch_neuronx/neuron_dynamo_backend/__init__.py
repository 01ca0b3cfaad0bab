"""The Dynamo backend `neuron`."""
