{{- define "callgate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "callgate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "callgate.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "callgate.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "callgate.selector" -}}
app.kubernetes.io/name: {{ include "callgate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "callgate.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{ include "callgate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "callgate.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "callgate.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "callgate.image" -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest | quote -}}
{{- else -}}
{{- printf "%s:%s" .repository (default .version .tag) | quote -}}
{{- end -}}
{{- end -}}

{{- /* The config as it is written: what the chart decides goes over what the values say. */ -}}
{{- define "callgate.config" -}}
{{- $server := dict "host" "0.0.0.0" "port" 8000 "drain_seconds" .Values.drainSeconds -}}
{{- $written := dict "server" $server "data_dir" "/data" -}}
{{- toYaml (mergeOverwrite (deepCopy .Values.config) $written) -}}
{{- end -}}

{{- define "callgate.environment" -}}
- name: CALLGATE_CONFIG
  value: /etc/callgate/config.yaml
{{- range $name, $value := .Values.environment }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{- /* Of a pod and of a container: nothing may be gained, and nothing written but /data and /tmp. */ -}}
{{- define "callgate.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "callgate.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "callgate.configVolume" -}}
- name: config
  projected:
    sources:
      - configMap: {name: {{ include "callgate.fullname" . }}}
      {{- with .Values.toolsConfigMap }}
      - configMap: {name: {{ . }}}
      {{- end }}
{{- end -}}

{{- /* Values that contradict one another, told before anything is installed. */ -}}
{{- define "callgate.check" -}}
{{- $store := default dict .Values.config.store -}}
{{- $ledger := default dict .Values.config.ledger -}}
{{- $several := or .Values.autoscaling.enabled (gt (int .Values.replicaCount) 1) -}}
{{- if and $several (not $store.redis_url) -}}
{{- fail "Several replicas need config.store.redis_url: without it each would have its own limits, chats and answers." -}}
{{- end -}}
{{- if and $several .Values.persistence.enabled (not $ledger.url) -}}
{{- fail "Several replicas cannot share persistence: set config.ledger.url to a Postgres database instead." -}}
{{- end -}}
{{- if and $several .Values.createKey -}}
{{- fail "createKey is for one replica: set it to false, and write `keys` into config or make them with `callgate keys create`." -}}
{{- end -}}
{{- if and .Values.migrate.enabled (not $ledger.url) -}}
{{- fail "migrate needs config.ledger.url." -}}
{{- end -}}
{{- if and .Values.pools (not (and $ledger.url $store.redis_url)) -}}
{{- fail "pools need config.ledger.url and config.store.redis_url." -}}
{{- end -}}
{{- range $name, $pool := .Values.pools -}}
{{- if not (hasKey (default dict $.Values.config.pools) $name) -}}
{{- fail (printf "pools.%s is not among config.pools: no tool could name it." $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
