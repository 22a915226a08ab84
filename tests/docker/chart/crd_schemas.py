"""JSON schemas of what others add to Kubernetes: the fields that we use of their published definitions, and no others.

KEDA 2.18 (keda.sh/v1alpha1), prometheus-operator 0.86 (monitoring.coreos.com/v1), the Gateway API 1.4 and its inference
extension 1.0.
"""

from typing import Any

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
BY_NAME: Schema = {"type": "object", "additionalProperties": TEXT}


def fields(*required: str, **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def several(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1}


def manifest(api_version: str, kind: str, spec: Schema) -> Schema:
    return fields(
        "apiVersion",
        "kind",
        "metadata",
        "spec",
        apiVersion={"const": api_version},
        kind={"const": kind},
        metadata=fields("name", name=TEXT, labels=BY_NAME, annotations=BY_NAME),
        spec=spec,
    )


_POLICY = fields("type", "value", "periodSeconds", type={"enum": ["Percent", "Pods"]}, value=COUNT, periodSeconds=COUNT)
_RULES = fields(stabilizationWindowSeconds={**COUNT, "maximum": 3600}, policies=several(_POLICY))
_TRIGGER = fields(
    "type",
    "metadata",
    type={"enum": ["prometheus", "redis"]},
    metricType={"enum": ["AverageValue", "Value"]},
    metadata=BY_NAME,  # all its values are texts
    authenticationRef=fields("name", name=TEXT),
)
_RULE = fields("alert", "expr", "labels", "annotations", alert=TEXT, expr=TEXT, labels=BY_NAME, annotations=BY_NAME)
_RULE["properties"]["for"] = TEXT
_PATH = fields("type", "value", type={"enum": ["PathPrefix"]}, value=TEXT)

SCHEMAS: dict[str, Schema] = {
    "ScaledObject": manifest(
        "keda.sh/v1alpha1",
        "ScaledObject",
        fields(
            "scaleTargetRef",
            "triggers",
            scaleTargetRef=fields("name", name=TEXT),
            minReplicaCount=COUNT,
            maxReplicaCount=COUNT,
            pollingInterval=COUNT,
            cooldownPeriod=COUNT,
            fallback=fields("failureThreshold", "replicas", failureThreshold=COUNT, replicas=COUNT),
            advanced=fields(horizontalPodAutoscalerConfig=fields(behavior=fields(scaleUp=_RULES, scaleDown=_RULES))),
            triggers=several(_TRIGGER),
        ),
    ),
    "TriggerAuthentication": manifest(
        "keda.sh/v1alpha1",
        "TriggerAuthentication",
        fields(secretTargetRef=several(fields("parameter", "name", "key", parameter=TEXT, name=TEXT, key=TEXT))),
    ),
    "ServiceMonitor": manifest(
        "monitoring.coreos.com/v1",
        "ServiceMonitor",
        fields(
            "selector",
            "endpoints",
            jobLabel=TEXT,
            selector=fields(matchLabels=BY_NAME),
            endpoints=several(fields("port", port=TEXT, interval=TEXT)),
        ),
    ),
    "PrometheusRule": manifest(
        "monitoring.coreos.com/v1",
        "PrometheusRule",
        fields(groups=several(fields("name", "rules", name=TEXT, rules=several(_RULE)))),
    ),
    "InferencePool": manifest(
        "inference.networking.k8s.io/v1",
        "InferencePool",
        fields(
            "selector",
            "targetPorts",
            "endpointPickerRef",
            selector=fields("matchLabels", matchLabels=BY_NAME),
            targetPorts=several(fields("number", number=COUNT)),
            endpointPickerRef=fields("name", name=TEXT, port=fields("number", number=COUNT)),
        ),
    ),
    "HTTPRoute": manifest(
        "gateway.networking.k8s.io/v1",
        "HTTPRoute",
        fields(
            parentRefs=several(fields("name", name=TEXT)),
            hostnames=several(TEXT),
            rules=several(
                fields(
                    matches=several(fields(path=_PATH)),
                    backendRefs=several(fields("name", group=TEXT, kind=TEXT, name=TEXT, port=COUNT)),
                    timeouts=fields(request=TEXT),
                )
            ),
        ),
    ),
}
