{{- define "embedline.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{- define "embedline.selector" -}}
app.kubernetes.io/name: embedline
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "embedline.labels" -}}
{{ include "embedline.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "embedline.mostReplicas" -}}
{{ if eq .Values.scaling.kind "none" }}{{ .Values.replicas }}{{ else }}{{ .Values.scaling.max }}{{ end }}
{{- end -}}

{{- define "embedline.cacheClaim" -}}
{{ .Values.modelCache.claim | default (printf "%s-models" (include "embedline.name" .)) }}
{{- end -}}

{{- define "embedline.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Values.image.variant) }}
{{- end -}}

{{- define "embedline.hubToken" -}}
{{- with .Values.hfToken }}
{{- if .secret }}
- {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: {{ quote .secret }}, key: {{ quote .key }}}}}
{{- end }}
{{- end }}
{{- end -}}

{{- define "embedline.resources" -}}
requests: {{- toYaml .Values.resources.requests | nindent 2 }}
limits: {{- toYaml .Values.resources.limits | nindent 2 }}
{{- end -}}

{{- define "embedline.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* Of (config, model): what `embedline compile` takes, a list in JSON. Flags of the model come before those of all models. */}}
{{- define "embedline.compiles" -}}
{{- $flags := merge (deepCopy .model) (omit .config "model") }}
{{- $arguments := list (get .model "model-id") }}
{{- range $flag := list "revision" "task" "template" "pooling" "pooling-method" "trust-config-key" "max-input-length" "max-model-len" "quantization" "convert" }}
{{- if hasKey $flags $flag }}
{{- range (kindIs "slice" (get $flags $flag) | ternary (get $flags $flag) (list (get $flags $flag))) }}
{{- $arguments = concat $arguments (list (printf "--%s" $flag) (toString .)) }}
{{- end }}
{{- end }}
{{- end }}
{{- toJson $arguments }}
{{- end -}}

{{- /* Of (root, model): its folder. Another one for whatever makes another model of it. */}}
{{- define "embedline.compiledFolder" -}}
{{- $made := include "embedline.compiles" (dict "config" .root.Values.config "model" .model) }}
{{- printf "/data/compiled/%s" (printf "%s %s %s" (include "embedline.image" .root) .root.Chart.AppVersion $made | sha256sum | trunc 16) }}
{{- end -}}
