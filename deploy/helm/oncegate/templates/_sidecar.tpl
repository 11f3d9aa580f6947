{{/*
For charts that have this one as a dependency. Call each template with the dependency's context, .Subcharts.oncegate:

  initContainers:
    {{- include "oncegate.sidecar" .Subcharts.oncegate | nindent 8 }}
*/}}

{{/* The sidecar: an entry of initContainers. */}}
{{- define "oncegate.sidecar" -}}
- {{ include "oncegate.container" . | nindent 2 | trim }}
  # Makes it a sidecar: it starts before the application and ends after it.
  restartPolicy: Always
  # Its SIGTERM comes only when the application has ended. This hook runs as soon as the pod is deleted.
  lifecycle:
    preStop:
      exec:
        command: [/oncegate, drain, --wait, {{ printf "%ds" (include "oncegate.sidecar.drainSeconds" . | int) }}]
{{- end }}

{{/* Entries of volumes. */}}
{{- define "oncegate.sidecar.volumes" -}}
{{ include "oncegate.volumes" (list . (include "oncegate.configMapName" .)) }}
{{- if .Values.persistence.enabled }}
- name: oncegate-store
  persistentVolumeClaim:
    claimName: {{ .Values.persistence.existingClaim | default (include "oncegate.fullname" .) }}
{{- end }}
{{- with .Values.tls.secretName }}
- name: oncegate-tls
  secret:
    secretName: {{ . }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* For the pod's annotations: a changed configuration is a rollout. */}}
{{- define "oncegate.sidecar.checksum" -}}
checksum/oncegate: {{ include "oncegate.checksum" . }}
{{- end }}

{{/* For the pod's labels: the NetworkPolicy selects by it. */}}
{{- define "oncegate.sidecar.label" -}}
oncegate.sidecar: {{ .Release.Name }}
{{- end }}

{{/* The longest time that the hook waits. */}}
{{- define "oncegate.sidecar.drainSeconds" -}}
{{ add .Values.drain.delaySeconds .Values.drain.timeoutSeconds 5 }}
{{- end }}

{{/* For the application's preStop sleep: it stays up until the proxy's drain is over. */}}
{{- define "oncegate.sidecar.appSleepSeconds" -}}
{{ add .Values.drain.delaySeconds .Values.drain.timeoutSeconds 1 }}
{{- end }}

{{/* terminationGracePeriodSeconds, without the time of the application's own shutdown: add that. */}}
{{- define "oncegate.gracePeriodSeconds" -}}
{{ add .Values.drain.delaySeconds .Values.drain.timeoutSeconds .Values.drain.spareSeconds }}
{{- end }}
