{{/* Ends the rendering with a message where values contradict each other, or where one would change nothing. */}}
{{- define "oncegate.refuse" -}}
{{- $v := .Values }}
{{- if ne $v.mode "gateway" }}
{{- range list "autoscaling" "persistence" "ingress" "httpRoute" }}
{{- if (index $v .).enabled }}
{{- fail (printf "%s: a sidecar has none: it is for mode gateway" .) }}
{{- end }}
{{- end }}
{{- range list "podAnnotations" "podLabels" "nodeSelector" "tolerations" "affinity" "priorityClassName" "initContainers" "extraContainers" }}
{{- if index $v . }}
{{- fail (printf "%s: a sidecar runs in the pods of another chart: write it there" .) }}
{{- end }}
{{- end }}
{{- if and $v.imagePullSecrets (not $v.migrate.enabled) }}
{{- fail "imagePullSecrets: a sidecar runs in the pods of another chart: write it there" }}
{{- end }}
{{- range $name, $keys := dict "serviceAccount" (list "name" "annotations") "service" (list "annotations" "loadBalancerSourceRanges") "podDisruptionBudget" (list "minAvailable" "maxUnavailable") }}
{{- range $keys }}
{{- if index $v $name . | empty | not }}
{{- fail (printf "%s.%s: a sidecar has none: it is for mode gateway" $name .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- range list "commonLabels" "podLabels" }}
{{- if keys (index $v .) | has "app.kubernetes.io/name" | or (keys (index $v .) | has "app.kubernetes.io/instance") }}
{{- fail (printf "%s: app.kubernetes.io/name and app.kubernetes.io/instance are the chart's: pods are selected by them" .) }}
{{- end }}
{{- end }}
{{- if $v.terminationGracePeriodSeconds }}
{{- fail "terminationGracePeriodSeconds: it is the sum of drain.delaySeconds, drain.timeoutSeconds and drain.spareSeconds: set those" }}
{{- end }}
{{- if eq (int $v.containerPorts.http) (int $v.containerPorts.admin) }}
{{- fail "containerPorts: http and admin are one port" }}
{{- end }}

{{- if $v.existingConfigMap }}
{{- $written := or $v.upstream (ne $v.config.service "default") (not (kindIs "invalid" $v.config.tables)) }}
{{- range list "top" "store" "defaults" "policy" "services" "routes" }}{{ $written = or $written (index $v.config .) }}{{ end }}
{{- if $written }}
{{- fail "existingConfigMap: upstream and config would not be read: write them into its oncegate.toml" }}
{{- end }}
{{- if and (ne $v.mode "gateway") $v.networkPolicy.enabled }}
{{- fail "existingConfigMap: the chart cannot read the application's port from it: set networkPolicy.enabled to false, and write a NetworkPolicy" }}
{{- end }}
{{- end }}
{{- if and $v.existingSecret (or $v.secrets.storeUrl $v.secrets.adminToken $v.secrets.fingerprintSecret) }}
{{- fail "existingSecret: the values of secrets would not be read: write them into it" }}
{{- end }}
{{- if and $v.migrate.enabled (not $v.existingSecret) }}
{{- fail "migrate: the job runs before the release's own Secret exists: set existingSecret" }}
{{- end }}

{{- if $v.persistence.enabled }}
{{- if or $v.autoscaling.enabled (gt (int $v.replicaCount) 1) }}
{{- fail "persistence: the embedded store is for one instance: set replicaCount to 1 and autoscaling.enabled to false, or use PostgreSQL" }}
{{- end }}
{{- if $v.secrets.storeUrl }}
{{- fail "persistence: the embedded store takes the place of secrets.storeUrl: set one of them" }}
{{- end }}
{{- if $v.migrate.enabled }}
{{- fail "migrate: the embedded store is migrated at its start: set migrate.enabled to false" }}
{{- end }}
{{- end }}

{{- if $v.autoscaling.enabled }}
{{- if gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas) }}
{{- fail "autoscaling: minReplicas is above maxReplicas" }}
{{- end }}
{{- if not (dig "requests" "cpu" "" $v.resources) }}
{{- fail "autoscaling: the target is a percentage of resources.requests.cpu, which is not set" }}
{{- end }}
{{- end }}
{{- if and (ne (toString $v.podDisruptionBudget.minAvailable) "") (ne (toString $v.podDisruptionBudget.maxUnavailable) "") }}
{{- fail "podDisruptionBudget: Kubernetes takes minAvailable or maxUnavailable, not both" }}
{{- end }}
{{- if and $v.ingress.enabled (not $v.ingress.hosts) }}
{{- fail "ingress: set ingress.hosts" }}
{{- end }}
{{- if and $v.service.loadBalancerSourceRanges (ne $v.service.type "LoadBalancer") }}
{{- fail "service.loadBalancerSourceRanges: set service.type to LoadBalancer" }}
{{- end }}
{{- if and $v.httpRoute.enabled (not $v.httpRoute.parentRefs) }}
{{- fail "httpRoute: set httpRoute.parentRefs to its Gateway" }}
{{- end }}
{{- if and $v.podMonitor.enabled $v.serviceMonitor.enabled }}
{{- fail "serviceMonitor: with a podMonitor too, each instance would be scraped twice: enable one" }}
{{- end }}
{{- end }}
