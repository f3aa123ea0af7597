{{/*
Writes values as TOML. Helm's own toToml is not used: some versions write whole numbers as floats (20.0), which the program
refuses for integers.
*/}}

{{/* A document: all keys of a map. */}}
{{- define "howdah.toml" -}}
{{- include "howdah.toml.table" (dict "path" "" "table" .) | trim -}}
{{- end -}}

{{/*
The keys of a table, then the tables below it, each with a header and an empty line before it. A key whose value is null is
left out. dict: path (of the table, "" for the document), table
*/}}
{{- define "howdah.toml.table" -}}
{{- $path := .path -}}
{{- range $key, $value := .table -}}
{{- if not (or (kindIs "invalid" $value) (kindIs "map" $value) (eq (include "howdah.toml.isArrayOfTables" $value) "true")) -}}
{{ include "howdah.toml.key" $key }} = {{ include "howdah.toml.value" $value }}
{{ end -}}
{{- end -}}
{{- range $key, $value := .table -}}
{{- $below := include "howdah.toml.key" $key -}}
{{- if $path -}}
{{- $below = printf "%s.%s" $path $below -}}
{{- end -}}
{{- if kindIs "map" $value }}
[{{ $below }}]
{{ include "howdah.toml.table" (dict "path" $below "table" $value) -}}
{{- else if eq (include "howdah.toml.isArrayOfTables" $value) "true" -}}
{{- range $item := $value }}
[[{{ $below }}]]
{{ include "howdah.toml.table" (dict "path" $below "table" $item) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* "true" for a list whose first item is a map. */}}
{{- define "howdah.toml.isArrayOfTables" -}}
{{- if kindIs "slice" . -}}
{{- if . -}}
{{- kindIs "map" (first .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "howdah.toml.key" -}}
{{- if regexMatch "^[A-Za-z0-9_-]+$" . -}}
{{- . -}}
{{- else -}}
{{- toRawJson . -}}
{{- end -}}
{{- end -}}

{{/*
A value on one line. A string of JSON is also one of TOML. Numbers are float64 or json.Number, depending on where the value
comes from and on Helm's version; the kind of a json.Number is "string", so it comes first.
*/}}
{{- define "howdah.toml.value" -}}
{{- if typeIs "json.Number" . -}}
{{- toString . -}}
{{- else if kindIs "string" . -}}
{{- toRawJson . -}}
{{- else if kindIs "float64" . -}}
{{- if eq . (floor .) -}}
{{- printf "%.0f" . -}}
{{- else -}}
{{- toString . -}}
{{- end -}}
{{- else if kindIs "slice" . -}}
{{- $items := list -}}
{{- range $item := . -}}
{{- $items = append $items (include "howdah.toml.value" $item) -}}
{{- end -}}
{{- printf "[%s]" (join ", " $items) -}}
{{- else if kindIs "map" . -}}
{{- $pairs := list -}}
{{- range $key, $value := . -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $pairs = append $pairs (printf "%s = %s" (include "howdah.toml.key" $key) (include "howdah.toml.value" $value)) -}}
{{- end -}}
{{- end -}}
{{- printf "{ %s }" (join ", " $pairs) -}}
{{- else -}}
{{- toString . -}}
{{- end -}}
{{- end -}}
