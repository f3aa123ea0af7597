{{/*
Names, labels and parts of pods. Templates that take several arguments take a dict; the comment above each lists its keys.
*/}}

{{- define "howdah.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* The prefix of names. At most 48 bytes, so that a name with a suffix has at most 63. */}}
{{- define "howdah.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 48 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 48 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* dict: context, component (optional) */}}
{{- define "howdah.selectorLabels" -}}
app.kubernetes.io/name: {{ include "howdah.name" .context }}
app.kubernetes.io/instance: {{ .context.Release.Name | quote }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{/* dict: context, component (optional) */}}
{{- define "howdah.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .context.Chart.Name .context.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "howdah.selectorLabels" . }}
app.kubernetes.io/version: {{ .context.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .context.Release.Service }}
{{- end -}}

{{- define "howdah.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion | toString) -}}
{{- end -}}
{{- end -}}

{{- define "howdah.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "howdah.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* An address to listen on, HOST:PORT; an IPv6 address is in brackets. dict: context, port */}}
{{- define "howdah.bind" -}}
{{- $host := .context.Values.bindAddress -}}
{{- if contains ":" $host -}}
{{- printf "[%s]:%s" $host (toString .port) -}}
{{- else -}}
{{- printf "%s:%s" $host (toString .port) -}}
{{- end -}}
{{- end -}}

{{/*
Fields of the spec of all pods. dict: context, part (the values of the part)

Service links are off, because Kubernetes would set variables named after Services, and Howdah reads its options from such
variables: a Service "howdah-top" sets HOWDAH_TOP_PORT, which is the option --port of `howdah top`.
*/}}
{{- define "howdah.podSpec" -}}
serviceAccountName: {{ include "howdah.serviceAccountName" .context }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .context.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .context.Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .part.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Fields of all containers. dict: context, part */}}
{{- define "howdah.container" -}}
image: {{ include "howdah.image" .context | quote }}
imagePullPolicy: {{ .context.Values.image.pullPolicy }}
{{- with .context.Values.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
