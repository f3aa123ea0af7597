{{/*
Parts of the Jobs `import` and `replay`, whose pods each do one share of the work. $(INDEX) in arguments is the number of the
pod, from 0. A pod that fails is replaced by one with the same number, which replaces what the first one wrote.
*/}}

{{/* Name of a Job. Jobs cannot be changed, so one with other values has another name. dict: context, component, part */}}
{{- define "howdah.jobName" -}}
{{- printf "%s-%s-%s" (include "howdah.fullname" .context) .component (toJson .part | sha256sum | trunc 8) | trunc 63 -}}
{{- end -}}

{{/* The beginning of a Job's spec. dict: part, count */}}
{{- define "howdah.jobSpec" -}}
completionMode: Indexed
completions: {{ .count }}
parallelism: {{ .parallelism }}
backoffLimitPerIndex: {{ .part.retries }}
{{- with .part.ttlSecondsAfterFinished }}
ttlSecondsAfterFinished: {{ . }}
{{- end }}
{{- end -}}

{{/* Environment of a Job's container. dict: part, credentials (true if there are files for PostgreSQL) */}}
{{- define "howdah.jobEnv" -}}
env:
  - name: INDEX
    valueFrom:
      fieldRef:
        fieldPath: metadata.annotations['batch.kubernetes.io/job-completion-index']
  {{- if .credentials }}
  - name: PGSERVICEFILE
    value: /etc/howdah/credentials/pg_service.conf
  - name: PGPASSFILE
    value: /etc/howdah/credentials/pgpass
  {{- end }}
  {{- with .part.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .part.store.existingSecret }}
envFrom:
  - secretRef:
      name: {{ . }}
{{- end }}
{{- end -}}
