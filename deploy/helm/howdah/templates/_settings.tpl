{{/* The howdah.toml of each part: the settings of the values, and those that the chart decides. */}}

{{/* Fails if the values set a key that the chart sets. dict: table, section, key, instead */}}
{{- define "howdah.refuseSetting" -}}
{{- if hasKey (get .table .section | default dict) .key -}}
{{- fail (printf "pool.settings.%s.%s is set by the chart: use %s instead" .section .key .instead) -}}
{{- end -}}
{{- end -}}

{{/*
The pooler's howdah.toml. dict: context, addresses (to listen on), directories (of unix sockets), hasClientTls, peers,
delaySeconds (of a shutdown)
*/}}
{{- define "howdah.poolSettings" -}}
{{- $pool := .context.Values.pool -}}
{{- $settings := deepCopy $pool.settings -}}
{{- include "howdah.refuseSetting" (dict "table" $settings "section" "listen" "key" "addresses" "instead" "bindAddress") -}}
{{- include "howdah.refuseSetting" (dict "table" $settings "section" "listen" "key" "port" "instead" "pool.port") -}}
{{- include "howdah.refuseSetting" (dict "table" $settings "section" "listen" "key" "unix-directories" "instead" "the template howdah.poolSidecar") -}}
{{- include "howdah.refuseSetting" (dict "table" $settings "section" "timeouts" "key" "shutdown" "instead" "pool.drain.timeoutSeconds") -}}
{{- include "howdah.refuseSetting" (dict "table" $settings "section" "timeouts" "key" "shutdown-delay" "instead" "pool.drain.delaySeconds") -}}
{{- if not (get $settings "databases") -}}
{{- fail "pool.settings.databases: at least one database is needed" -}}
{{- end -}}
{{- $listen := get $settings "listen" | default dict -}}
{{- $_ := set $listen "addresses" .addresses -}}
{{- $_ := set $listen "port" $pool.port -}}
{{- $_ := set $listen "unix-directories" .directories -}}
{{- $_ := set $settings "listen" $listen -}}
{{- if and .peers (not (hasKey $settings "peers")) -}}
{{- $_ := set $settings "peers" .peers -}}
{{- end -}}
{{- $timeouts := get $settings "timeouts" | default dict -}}
{{- $_ := set $timeouts "shutdown" $pool.drain.timeoutSeconds -}}
{{- $_ := set $timeouts "shutdown-delay" .delaySeconds -}}
{{- $_ := set $settings "timeouts" $timeouts -}}
{{- if $pool.users.existingSecret -}}
{{- $auth := get $settings "auth" | default dict -}}
{{- $_ := set $auth "file" (printf "/etc/howdah/users/%s" $pool.users.key) -}}
{{- $_ := set $settings "auth" $auth -}}
{{- end -}}
{{- $tls := get $settings "tls" | default dict -}}
{{- if and .hasClientTls $pool.tls.client.existingSecret -}}
{{- $client := get $tls "client" | default dict -}}
{{- $_ := set $client "mode" $pool.tls.client.mode -}}
{{- $_ := set $client "certificate" "/etc/howdah/tls/tls.crt" -}}
{{- $_ := set $client "key" "/etc/howdah/tls/tls.key" -}}
{{- if $pool.tls.client.caKey -}}
{{- $_ := set $client "ca-file" (printf "/etc/howdah/tls/%s" $pool.tls.client.caKey) -}}
{{- end -}}
{{- $_ := set $tls "client" $client -}}
{{- end -}}
{{- if $pool.tls.server.caSecret -}}
{{- $server := get $tls "server" | default dict -}}
{{- $_ := set $server "ca-file" (printf "/etc/howdah/server-ca/%s" $pool.tls.server.caKey) -}}
{{- $_ := set $tls "server" $server -}}
{{- end -}}
{{- if $tls -}}
{{- $_ := set $settings "tls" $tls -}}
{{- end -}}
{{- $toml := include "howdah.toml" (dict "pool" $settings) -}}
{{- if and (regexMatch "(?m)^secret = " $toml) (not $pool.settingsInSecret) -}}
{{- fail "pool.settings contains a secret, which would be in a ConfigMap: move it to the user list (pool.users.existingSecret), or set pool.settingsInSecret to true" -}}
{{- end -}}
{{- $toml -}}
{{- end -}}

{{/*
The ConfigMap with the pooler's settings, or the Secret with pool.settingsInSecret.
dict: context, name, and those of howdah.poolSettings
*/}}
{{- define "howdah.poolSettingsObject" -}}
{{- $pool := .context.Values.pool -}}
apiVersion: v1
kind: {{ ternary "Secret" "ConfigMap" $pool.settingsInSecret }}
metadata:
  name: {{ .name }}
  labels:
    {{- include "howdah.labels" (dict "context" .context "component" "pool") | nindent 4 }}
{{ ternary "stringData" "data" $pool.settingsInSecret }}:
  howdah.toml: |
    {{- include "howdah.poolSettings" . | nindent 4 }}
  {{- range $name, $text := $pool.files }}
  {{ $name }}: {{ toJson $text }}
  {{- end }}
{{- end -}}

{{- define "howdah.statsdSettings" -}}
{{- $statsd := .Values.statsd -}}
{{- $settings := deepCopy $statsd.settings -}}
{{- $udp := dict "type" "udp" "address" (include "howdah.bind" (dict "context" . "port" $statsd.udp.port)) "readers" $statsd.udp.readers -}}
{{- $listen := list $udp -}}
{{- if $statsd.tcp.enabled -}}
{{- $listen = append $listen (dict "type" "tcp" "address" (include "howdah.bind" (dict "context" . "port" $statsd.tcp.port))) -}}
{{- end -}}
{{- $_ := set $settings "listen" $listen -}}
{{- $_ := set $settings "health" (include "howdah.bind" (dict "context" . "port" $statsd.healthPort)) -}}
{{- $_ := set $settings "shutdown-timeout" (printf "%ss" (toString $statsd.shutdownTimeoutSeconds)) -}}
{{- if ne (toString $statsd.metricsPort) "0" -}}
{{- $backends := get $settings "backends" | default dict -}}
{{- $prometheus := get $backends "prometheus" | default dict -}}
{{- $_ := set $prometheus "listen" (include "howdah.bind" (dict "context" . "port" $statsd.metricsPort)) -}}
{{- $_ := set $backends "prometheus" $prometheus -}}
{{- $_ := set $settings "backends" $backends -}}
{{- end -}}
{{- include "howdah.toml" (dict "statsd" $settings) -}}
{{- end -}}

{{- define "howdah.topSettings" -}}
{{- include "howdah.toml" (dict "top" .Values.top.settings) -}}
{{- end -}}
