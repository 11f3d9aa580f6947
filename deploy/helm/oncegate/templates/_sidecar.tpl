{{/*
For charts that have this one as a dependency. Each is called with the dependency's own context, .Subcharts.oncegate:

  initContainers:
    {{- include "oncegate.sidecar" .Subcharts.oncegate | nindent 8 }}
*/}}

{{/* The sidecar: an entry of initContainers. */}}
{{- define "oncegate.sidecar" -}}
- {{ include "oncegate.container" . | nindent 2 | trim }}
  # This makes it a sidecar: it starts before the application and ends after it.
  restartPolicy: Always
  # Its SIGTERM comes when the application has ended. This hook runs as soon as the pod is deleted.
  lifecycle:
    preStop:
      exec:
        command: [/oncegate, drain, --wait, {{ printf "%ds" (include "oncegate.sidecar.drainSeconds" . | int) }}]
{{- end }}

{{/* Entries of volumes. */}}
{{- define "oncegate.sidecar.volumes" -}}
- name: oncegate-config
  configMap:
    name: {{ include "oncegate.fullname" . }}
- name: oncegate-secrets
  secret:
    secretName: {{ include "oncegate.secretName" . }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* For the pod's annotations: a changed file is a rollout. */}}
{{- define "oncegate.sidecar.checksum" -}}
checksum/oncegate: {{ include "oncegate.file" . | sha256sum }}
{{- end }}

{{/* For the pod's labels: the NetworkPolicy goes by it. */}}
{{- define "oncegate.sidecar.label" -}}
oncegate.sidecar: {{ .Release.Name }}
{{- end }}

{{/* How long the hook waits at most. */}}
{{- define "oncegate.sidecar.drainSeconds" -}}
{{ add .Values.drain.delaySeconds .Values.drain.timeoutSeconds 5 }}
{{- end }}

{{/* For the application's preStop sleep: it stays up until the proxy has let go of it. */}}
{{- define "oncegate.sidecar.appSleepSeconds" -}}
{{ add .Values.drain.delaySeconds .Values.drain.timeoutSeconds 1 }}
{{- end }}

{{/* terminationGracePeriodSeconds, to which the application's own end is still to be added. */}}
{{- define "oncegate.gracePeriodSeconds" -}}
{{ add .Values.drain.delaySeconds .Values.drain.timeoutSeconds .Values.drain.spareSeconds }}
{{- end }}
