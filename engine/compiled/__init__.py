"""Models compiled for the CPU by OpenVINO or ONNX Runtime: one engine around two executors.

`load` of openvino.py and onnxruntime.py make an engine. A warm start, from the cache, imports neither torch nor
transformers; only conversion.py and reference.py do, and they are imported by a cold one alone.
"""
