{{- define "embedline.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{- define "embedline.selector" -}}
app.kubernetes.io/name: embedline
app.kubernetes.io/instance: {{ .Release.Name }}
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
