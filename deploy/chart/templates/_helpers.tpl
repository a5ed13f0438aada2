{{/* The namespace of the sandboxes. */}}
{{- define "sandpod.namespace" -}}
{{ .Values.namespace.name | default .Release.Namespace }}
{{- end }}

{{/* An image of sandpod. Takes the root as "root", the image's own values as "values", and its usual name as "name". */}}
{{- define "sandpod.image" -}}
{{- $tag := .root.Values.images.tag | default .root.Chart.AppVersion }}
{{- if .values.image -}}
{{ .values.image }}
{{- else if .root.Values.images.registry -}}
{{ .root.Values.images.registry }}/{{ .name }}:{{ $tag }}
{{- else -}}
{{ fail (printf "No image is configured for %s. Set images.registry to the registry that has sandpod's images, or set its own image." .name) }}
{{- end }}
{{- end }}

{{/* Labels of all objects, except where the object has its own value. */}}
{{- define "sandpod.labels" -}}
app.kubernetes.io/name: sandpod
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/*
The objects of a file that `sandpod manifests` prints as well, as a JSON list. Takes the root as "root", the file as "file", and
words to replace as "replace".
*/}}
{{- define "sandpod.objects" -}}
{{- $text := .root.Files.Get .file }}
{{- if not $text }}{{ fail (printf "The chart has no file %s." .file) }}{{ end }}
{{- $values := dict "NAMESPACE" (include "sandpod.namespace" .root) | merge (.replace | default dict) }}
{{- range $word, $value := $values }}
{{- $text = $text | replace $word $value }}
{{- end }}
{{- $labels := include "sandpod.labels" .root | fromYaml }}
{{- $objects := list }}
{{- range regexSplit "(?m)^---$" $text -1 }}
{{- $object := fromYaml . }}
{{- if hasKey $object "Error" }}{{ fail (printf "%s: %s" $.file $object.Error) }}{{ end }}
{{- if $object }}
{{- $_ := set $object.metadata "labels" (merge ($object.metadata.labels | default dict) $labels) }}
{{- $objects = append $objects $object }}
{{- end }}
{{- end }}
{{- toJson $objects }}
{{- end }}

{{/* The same objects as YAML documents. */}}
{{- define "sandpod.documents" -}}
{{- range include "sandpod.objects" . | fromJsonArray }}
---
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
Sets where a Pod runs and how its images are pulled, and renders nothing. Takes the root as "root", the Pod's spec as "pod", and the
values of its program or template as "values".
*/}}
{{- define "sandpod.schedule" -}}
{{- $pod := .pod }}
{{- with .values.nodeSelector }}{{ $_ := set $pod "nodeSelector" . }}{{ end }}
{{- with .values.tolerations }}{{ $_ := set $pod "tolerations" . }}{{ end }}
{{- with .root.Values.images.pullSecrets }}{{ $_ := set $pod "imagePullSecrets" . }}{{ end }}
{{- end }}
