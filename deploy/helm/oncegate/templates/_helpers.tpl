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

{{/* The configuration file. */}}
{{- define "oncegate.file" -}}
upstream = {{ required "upstream: set the address of the service" .Values.upstream | quote }}
service = {{ .Values.service | quote }}
listen = "0.0.0.0:{{ .Values.ports.http }}"
{{- if or .Values.existingSecret .Values.secrets.fingerprintSecret }}
secret = "${file:/run/secrets/oncegate/fingerprint-secret}"
{{- end }}
drain_delay = "{{ .Values.drain.delaySeconds }}s"
drain_timeout = "{{ .Values.drain.timeoutSeconds }}s"
{{- with .Values.config.top }}
{{ . | trim }}
{{- end }}

[admin]
listen = "0.0.0.0:{{ .Values.ports.admin }}"
token = "${file:/run/secrets/oncegate/admin-token}"

[store]
url = "${file:/run/secrets/oncegate/store-url}"
{{- with .Values.config.store }}
{{ . | trim }}
{{- end }}
{{- with .Values.config.tables }}

{{ . | trim }}
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
