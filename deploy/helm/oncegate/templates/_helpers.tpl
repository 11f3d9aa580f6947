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

{{- define "oncegate.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "oncegate.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
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
listen = "0.0.0.0:{{ .Values.ports.http }}"
{{- if or .Values.upstream (not (or $config.services (regexMatch (printf $header "services") $texts))) }}
upstream = {{ required "upstream: set the address of the service, or config.services" .Values.upstream | quote }}
service = {{ .Values.service | quote }}
{{- else if ne .Values.service "default" }}
{{- fail "service: it names the service at `upstream`, which is empty: name those of config.services there" }}
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
listen = "0.0.0.0:{{ .Values.ports.admin }}"
token = "${file:/run/secrets/oncegate/admin-token}"

[store]
url = "${file:/run/secrets/oncegate/store-url}"
{{- with $config.store }}
{{ . | trim }}
{{- end }}
{{- range $name := list "defaults" "policy" "services" "routes" }}
{{- with index $config $name }}
{{- if or (regexMatch (printf $header $name) $texts) (regexMatch (printf "(?m)^\\s*[\"']?%s[\"']?\\s*[=.]" $name) (toString $config.top)) }}
{{- fail (printf "config.%s: `%s` is also in the TOML of config.top, config.store or config.tables: write it in one place" $name $name) }}
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
    containerPort: {{ .Values.ports.http }}
  - name: admin
    containerPort: {{ .Values.ports.admin }}
{{- with .Values.extraEnv }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
startupProbe:
  httpGet: {path: /healthz, port: admin}
  periodSeconds: 2
  failureThreshold: {{ div (add .Values.startup.seconds 1) 2 }}
readinessProbe:
  httpGet: {path: {{ .Values.readiness.path }}, port: admin}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /healthz, port: admin}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
  - name: oncegate-config
    mountPath: /etc/oncegate
    readOnly: true
  - name: oncegate-secrets
    mountPath: /run/secrets/oncegate
    readOnly: true
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
