{{/* The pooler's container and volumes, for its Deployment and for pods of other charts. */}}

{{- define "howdah.poolArgs" -}}
- pool
- -c
- /etc/howdah/settings/howdah.toml
- --metrics
- {{ include "howdah.bind" (dict "context" . "port" .Values.pool.metricsPort) | quote }}
{{- with .Values.pool.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "howdah.poolMounts" -}}
- name: howdah-settings
  mountPath: /etc/howdah/settings
  readOnly: true
{{- if .Values.pool.users.existingSecret }}
- name: howdah-users
  mountPath: /etc/howdah/users
  readOnly: true
{{- end }}
{{- if .Values.pool.tls.server.caSecret }}
- name: howdah-server-ca
  mountPath: /etc/howdah/server-ca
  readOnly: true
{{- end }}
{{- with .Values.pool.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* dict: context, settings (name of the object with howdah.toml), mode (of files in Secrets) */}}
{{- define "howdah.poolVolumes" -}}
{{- $pool := .context.Values.pool -}}
- name: howdah-settings
  {{- if $pool.settingsInSecret }}
  secret:
    secretName: {{ .settings }}
    defaultMode: {{ .mode }}
  {{- else }}
  configMap:
    name: {{ .settings }}
  {{- end }}
{{- with $pool.users.existingSecret }}
- name: howdah-users
  secret:
    secretName: {{ . }}
    defaultMode: {{ $.mode }}
{{- end }}
{{- with $pool.tls.server.caSecret }}
- name: howdah-server-ca
  secret:
    secretName: {{ . }}
    defaultMode: {{ $.mode }}
{{- end }}
{{- with $pool.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
The pooler in a pod of another chart, as a native sidecar. That chart has this one as a dependency with pool.enabled = false,
and passes this chart's context, which is .Subcharts.howdah. The settings are those of the values `howdah.pool`.

    # templates/deployment.yaml, in the pod's spec
    initContainers:
      {{- include "howdah.poolSidecar" .Subcharts.howdah | nindent 6 }}
    volumes:
      {{- include "howdah.poolSidecarVolumes" .Subcharts.howdah | nindent 6 }}

    # templates/howdah.yaml
    {{ include "howdah.poolSidecarSettings" .Subcharts.howdah }}

The pooler listens on 127.0.0.1 and in /run/howdah, without TLS. To use the unix socket, mount the volume howdah-run in the
application's container.

It starts before the application's containers and stops after them, so it needs no delay: when it gets SIGTERM, its
clients are gone.
*/}}
{{- define "howdah.poolSidecar" -}}
- name: howdah-pool
  restartPolicy: Always
  {{- include "howdah.container" (dict "context" . "part" .Values.pool) | nindent 2 }}
  args:
    {{- include "howdah.poolArgs" . | nindent 4 }}
  {{- with .Values.pool.extraEnv }}
  env:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  ports:
    - name: howdah-metrics
      containerPort: {{ .Values.pool.metricsPort }}
      protocol: TCP
  startupProbe:
    httpGet:
      path: /readyz
      port: howdah-metrics
    periodSeconds: 1
    failureThreshold: 60
  livenessProbe:
    httpGet:
      path: /healthz
      port: howdah-metrics
    {{- toYaml .Values.pool.livenessProbe | nindent 4 }}
  volumeMounts:
    {{- include "howdah.poolMounts" . | nindent 4 }}
    - name: howdah-run
      mountPath: /run/howdah
{{- end -}}

{{/*
The sidecar's volumes. Files of Secrets have mode 0444, because the fsGroup of the pod is not known here. Only the sidecar
mounts them.
*/}}
{{- define "howdah.poolSidecarVolumes" -}}
{{- $name := printf "%s-sidecar" (include "howdah.fullname" .) -}}
{{ include "howdah.poolVolumes" (dict "context" . "settings" $name "mode" "0444") }}
- name: howdah-run
  emptyDir: {}
{{- end -}}

{{/* The sidecar's ConfigMap, or its Secret with pool.settingsInSecret. */}}
{{- define "howdah.poolSidecarSettings" -}}
{{- $name := printf "%s-sidecar" (include "howdah.fullname" .) -}}
{{- include "howdah.poolSettingsObject" (dict "context" . "name" $name "addresses" (list "127.0.0.1") "directories" (list "/run/howdah") "hasClientTls" false "peers" (list) "delaySeconds" 0) -}}
{{- end -}}
