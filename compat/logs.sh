# Part of compat/run: what a server logs of a driver, replayed. Every format of the log is of the same session, since
# the server writes all of them at once.

# What `howdah capture doctor` recommends, but for rotation, which would spread a driver over files. LOGGING replaces
# the first line of it: LOGGING='log_statement=none log_min_duration_statement=0' shows what that costs.
readonly LOGGING=${LOGGING:-log_statement=all log_duration=on log_min_duration_statement=-1}
readonly LOG_SETTINGS="$LOGGING log_min_error_statement=error log_error_verbosity=default
  log_parameter_max_length=-1 log_parameter_max_length_on_error=-1 log_connections=on log_disconnections=on
  compute_query_id=on log_timezone=UTC lc_messages=C logging_collector=on log_filename=postgresql.log
  log_directory=log log_rotation_age=0 log_rotation_size=0"
readonly LOG_PREFIX='%m|%u|%d|%a|%c|%v|%x|%e|%Q|'

# Tables that a log cannot fill: with rows of COPY FROM STDIN (pgbench's accounts are), and with results that depend
# on types which only the driver knows.
readonly LIMITED="relname like '%\_copied' or relname like '%\_untyped' or relname = 'pgbench_accounts'"

# Starts a server whose logs are read, at SOURCE_PORT, and one on which they are replayed, at TARGET_PORT.
start_log_servers() {
  local settings=() word
  for word in $LOG_SETTINGS; do settings+=(--set "$word"); done
  log_formats='stderr csv json'
  [ "$1" -ge 15 ] || log_formats='stderr csv'
  local destinations='stderr,csvlog,jsonlog'
  [ "$1" -ge 15 ] || destinations='stderr,csvlog'
  start_server "$1" "compat-$1-source-$$" "${settings[@]}" --set "log_line_prefix=$LOG_PREFIX" \
    --set "log_destination=$destinations"
  SOURCE_PORT=$server_port
  start_server "$1" "compat-$1-target-$$"
  TARGET_PORT=$server_port
  log_folder=$(psql -XAtq -h 127.0.0.1 -p "$SOURCE_PORT" -c "select current_setting('data_directory') || '/log'")
}

log_file() {
  case $1 in
    stderr) echo "$log_folder/postgresql.log" ;;
    *) echo "$log_folder/postgresql.$1" ;;
  esac
}

# Waits until the sessions of a database have ended, and what they did is in the logs.
wait_for_logs() {
  local database=$1 source=(psql -XAtq -h 127.0.0.1 -p "$SOURCE_PORT" -d postgres) tries format
  local mark="all of $database is logged"
  for ((tries = 0; tries < 200; tries++)); do
    [ "$("${source[@]}" -c "select count(*) from pg_stat_activity where datname = '$database'")" != 0 ] || break
    sleep 0.1
  done
  "${source[@]}" -c "select '$mark'" > /dev/null
  for format in $log_formats; do
    for ((tries = 0; tries < 100; tries++)); do
      ! grep -q "$mark" "$(log_file "$format")" || break
      sleep 0.1
    done
    [ "$tries" -lt 100 ] || { echo "the $format log does not end"; return 1; }
  done
}

# Runs a driver's check on a server that logs, replays each log on an empty database, and compares.
round_logs() {
  local driver=$1 name=$2 before=$2_captured format log is_different=no
  local -A start
  for format in $log_formats; do start[$format]=$(stat -c %s "$(log_file "$format")"); done
  psql -XAtq -h 127.0.0.1 -p "$SOURCE_PORT" -d postgres -c "create database $before" || return
  PGPORT=$SOURCE_PORT PGDATABASE=$before check "$driver" || return
  wait_for_logs "$before" || return
  for format in $log_formats; do
    tail -c "+$((start[$format] + 1))" "$(log_file "$format")" > "$work/$name.$format"
  done
  SERVER_PORT=$SOURCE_PORT contents "$before" "not ($LIMITED)" > "$work/before"
  for format in $log_formats; do
    log=$work/$name.$format
    replay_log "$format" "$log" "$name" || is_different=yes
  done
  [ "$is_different" = no ]
}

# One log; adds its result to the table.
replay_log() {
  local format=$1 log=$2 before=$3_captured after=$3_$1 capture=$work/capture-$3-$1 result is_same=yes
  local words=(--input-format "$format")
  [ "$format" != stderr ] || words+=(--prefix "$LOG_PREFIX")
  psql -XAtq -h 127.0.0.1 -p "$TARGET_PORT" -d postgres -c "create database $after" || return
  "$HOWDAH" capture import "$log" "${words[@]}" --database "$before" -o "$capture" > "$work/import" 2>&1 ||
    { tail -40 "$work/import"; tabulate "$format" 'import fails'; return 1; }
  "$HOWDAH" replay "$capture" --target "postgresql://postgres@127.0.0.1:$TARGET_PORT/$after" --map-database \
    "$before=$after" --allow-production "$after" --format json -o "$work/run-$after" > "$work/replay.json" \
    2> "$work/replay" || { tail -40 "$work/replay"; tabulate "$format" 'replay fails'; return 1; }
  SERVER_PORT=$TARGET_PORT contents "$after" "not ($LIMITED)" > "$work/after"
  # Errors: of both, only of the replay, only of the original. A failed statement that did not fail before, and one
  # that does not fail any more, are differences, too.
  local both here there skipped
  both=$(jq '[.errors_captured_too[]] | add // 0' "$work/replay.json")
  here=$(jq '([.errors[]] | add // 0) - ([.errors_captured_too[]] | add // 0)' "$work/replay.json")
  there=$(jq .failed_only_when_captured "$work/replay.json")
  skipped=$(jq -r '.skipped | to_entries | map("\(.key): \(.value)") | join(", ")' "$work/replay.json")
  result=same
  if ! diff "$work/before" "$work/after" > "$work/diff"; then
    is_same=no
    result="$(grep -c '^[<>]' "$work/diff") rows differ"
    printf '%s: the tables are different\n' "$format"
    head -c 2000 "$work/diff"
  fi
  if [ "$here" != 0 ] || [ "$there" != 0 ]; then
    is_same=no
    printf '%s: errors are different: %s\n' "$format" "$(jq -c '[.errors, .errors_captured_too]' "$work/replay.json")"
  fi
  result+="; $(wc -l < "$work/after") rows; errors: $both in both"
  [ "$here" = 0 ] || result+=", $here only in the replay"
  [ "$there" = 0 ] || result+=", $there only in the original"
  [ -z "$skipped" ] || result+="; skipped: $skipped"
  tabulate "$format" "$result"
  printf '%s: %s, cksum %s\n' "$format" "$result" "$(cksum < "$work/after" | cut -d' ' -f1)"
  [ "$is_same" = yes ]
}
