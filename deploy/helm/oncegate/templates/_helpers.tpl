{{- define "oncegate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "oncegate.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "oncegate.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "oncegate.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "oncegate.selectorLabels" -}}
app.kubernetes.io/name: {{ include "oncegate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The labels by which the pods with Oncegate are found: the gateway's, or those of another chart with the sidecar. */}}
{{- define "oncegate.podSelector" -}}
{{- include (ternary "oncegate.selectorLabels" "oncegate.sidecar.label" (eq .Values.mode "gateway")) . }}
{{- end }}

{{- define "oncegate.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "oncegate.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The labels of a pod that no selector of the release finds. Call it with the context and the pod's part. */}}
{{- define "oncegate.jobLabels" -}}
{{- $part := last . }}
{{- with first . -}}
app.kubernetes.io/name: {{ include "oncegate.name" . }}-{{ $part }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end }}

{{- define "oncegate.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "oncegate.secretName" -}}
{{- .Values.existingSecret | default (include "oncegate.fullname" .) }}
{{- end }}

{{- define "oncegate.configMapName" -}}
{{- .Values.existingConfigMap | default (include "oncegate.fullname" .) }}
{{- end }}

{{/* Changes with the configuration, so that a changed one is a rollout. The chart cannot read a ConfigMap of yours. */}}
{{- define "oncegate.checksum" -}}
{{- if .Values.existingConfigMap }}{{ sha256sum .Values.existingConfigMap }}{{ else }}{{ include "oncegate.file" . | sha256sum }}{{ end }}
{{- end }}

{{- define "oncegate.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- .Values.serviceAccount.name | default (include "oncegate.fullname" .) }}
{{- else }}
{{- .Values.serviceAccount.name | default "default" }}
{{- end }}
{{- end }}

{{/* Makes the whole numbers of a map integers again: Helm reads all numbers of YAML as floats, and TOML tells them apart. */}}
{{- define "oncegate.integers" -}}
{{- range $key, $value := . }}
{{- if kindIs "float64" $value }}
{{- if eq $value (floor $value) }}{{ $_ := set $ $key (int64 $value) }}{{ end }}
{{- else }}
{{- range ternary $value (list $value) (kindIs "slice" $value) }}
{{- if kindIs "map" . }}{{ include "oncegate.integers" . }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The configuration file. */}}
{{- define "oncegate.file" -}}
{{- $config := deepCopy .Values.config }}
{{- $texts := list $config.top $config.store $config.tables | join "\n" }}
{{- $header := "(?m)^\\s*\\[\\[?\\s*[\"']?%s[\"']?\\s*[].]" -}}
listen = "0.0.0.0:{{ .Values.containerPorts.http }}"
{{- if or .Values.upstream (not (or $config.services (regexMatch (printf $header "services") $texts))) }}
upstream = {{ required "upstream: set the address of the service, or config.services" .Values.upstream | quote }}
service = {{ $config.service | quote }}
{{- else if ne $config.service "default" }}
{{- fail "config.service: it names the service at `upstream`, which is empty: name those of config.services there" }}
{{- end }}
{{- if or .Values.existingSecret .Values.secrets.fingerprintSecret }}
secret = "${file:/run/secrets/oncegate/fingerprint-secret}"
{{- end }}
drain_delay = "{{ .Values.drain.delaySeconds }}s"
drain_timeout = "{{ .Values.drain.timeoutSeconds }}s"
{{- with $config.top }}
{{ . | trim }}
{{- end }}

[admin]
listen = "0.0.0.0:{{ .Values.containerPorts.admin }}"
token = "${file:/run/secrets/oncegate/admin-token}"

[store]
url = {{ ternary "sqlite:/var/lib/oncegate/oncegate.db" "${file:/run/secrets/oncegate/store-url}" .Values.persistence.enabled | quote }}
{{- with $config.store }}
{{ . | trim }}
{{- end }}
{{- if .Values.tls.secretName }}
{{- $_ := set $config "tls" (dict "certificate" "/run/secrets/oncegate-tls/tls.crt" "key" "/run/secrets/oncegate-tls/tls.key") }}
{{- end }}
{{- range $name := list "tls" "defaults" "policy" "services" "routes" }}
{{- with index $config $name }}
{{- if or (regexMatch (printf $header $name) $texts) (regexMatch (printf "(?m)^\\s*[\"']?%s[\"']?\\s*[=.]" $name) (toString $config.top)) }}
{{- fail (printf "%s: `%s` is also in the TOML of config.top, config.store or config.tables: write it in one place" (ternary "tls.secretName" (print "config." $name) (eq $name "tls")) $name) }}
{{- end }}
{{- $table := dict $name . }}
{{- include "oncegate.integers" $table }}

{{ toToml $table | trim }}
{{- end }}
{{- end }}
{{- with $config.tables }}

{{ . | trim }}
{{- end }}
{{- if and (kindIs "invalid" $config.tables) (not $config.routes) }}
{{- if $config.services }}
{{- fail "config.routes: config.services is set, and no request of theirs is guarded: write routes" }}
{{- end }}

[[routes]]
name = "default"
path = "/{*rest}"
methods = ["POST", "PATCH"]
# First observe, then enforce.
mode = "observe"
{{- end }}
{{- end }}

{{/* The container of gateway and sidecar. */}}
{{- define "oncegate.container" -}}
name: oncegate
image: {{ include "oncegate.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
ports:
  - name: http
    containerPort: {{ .Values.containerPorts.http }}
  - name: admin
    containerPort: {{ .Values.containerPorts.admin }}
{{- range $field, $value := dict "env" .Values.extraEnv "envFrom" .Values.extraEnvFrom "startupProbe" .Values.startupProbe "readinessProbe" .Values.readinessProbe "livenessProbe" .Values.livenessProbe "securityContext" .Values.securityContext "resources" .Values.resources }}
{{- with $value }}
{{ $field }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
volumeMounts:
  {{- include "oncegate.mounts" . | nindent 2 }}
  {{- if .Values.persistence.enabled }}
  - name: oncegate-store
    mountPath: /var/lib/oncegate
  {{- end }}
  {{- if .Values.tls.secretName }}
  - name: oncegate-tls
    mountPath: /run/secrets/oncegate-tls
    readOnly: true
  {{- end }}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* The mounts of the configuration and its secrets. */}}
{{- define "oncegate.mounts" -}}
- name: oncegate-config
  mountPath: /etc/oncegate
  readOnly: true
- name: oncegate-secrets
  mountPath: /run/secrets/oncegate
  readOnly: true
{{- end }}

{{/* Their volumes. Call it with the context and the name of the ConfigMap. */}}
{{- define "oncegate.volumes" -}}
- name: oncegate-config
  configMap:
    name: {{ last . }}
- name: oncegate-secrets
  secret:
    secretName: {{ include "oncegate.secretName" (first .) }}
{{- end }}
