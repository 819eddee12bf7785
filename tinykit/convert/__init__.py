"""Weights in, ONNX graphs out."""
