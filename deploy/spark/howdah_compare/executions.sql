-- What `howdah compare` measures of the executions in runs, for Spark and for DuckDB: the text is the same.
--
-- Input:
--   outcomes    the rows of outcomes-*.parquet, with
--     run          number of the run
--     part         number of the part of the run: 0 unless several replays wrote it
--     place        bigint: order of the rows in a run, by part, file and row of the file
--     row_count    the column rows; user and database below have other names for the same reason: SQL reserves them
--   statements  the rows of statements-*.parquet, with run, part, and
--     preference   the text with the smallest one is used
--     user_name, database_name   the columns user and database
--   howdah_bucket(us)                  bucket of PercentileHistogram: exact below 128, else 64 in each power of two
--   howdah_slot(fingerprint, number)   where the sample of a query stores its execution with this number, counting
--                                      from 4097 on: a random number below `number`
--
-- No step orders all executions of a query: a file is ordered by itself, and its offset added. So a query with most of
-- the executions is spread over as many tasks as there are files.
--
-- Each view is a step. The last three are the results: `queries`, `texts` and `unattributed`.

create or replace temporary view executions as
select run, part, place, fingerprint, disposition, sqlstate, error, row_count, service_us,
       coalesce(sent_us, due_us) as at_us,
       disposition = 'done' and service_us is not null as is_timed,
       -- 2^20: rows of a file, rounded up.
       place - place % 1048576 as file
from outcomes
where kind in ('simple', 'copy', 'execute', 'fetch', 'call');

create or replace temporary view counts_of_files as
select run, part, file, fingerprint,
       min(place) as first_place,
       count(*) filter (where disposition = 'done') as done,
       count(*) filter (where disposition = 'failed') as failed,
       count(*) filter (where disposition in ('skipped', 'dropped')) as skipped,
       coalesce(sum(row_count) filter (where disposition = 'done'), 0) as total_rows,
       count(row_count) filter (where disposition = 'done') as rows_known,
       count(*) filter (where is_timed) as timed,
       coalesce(sum(service_us) filter (where is_timed), 0) as total_us,
       coalesce(max(service_us) filter (where is_timed), 0) as max_us
from executions
group by run, part, file, fingerprint;

create or replace temporary view counts as
select run, fingerprint,
       min(first_place) as first_place,
       sum(done) as done, sum(failed) as failed, sum(skipped) as skipped,
       sum(total_rows) as total_rows, sum(rows_known) as rows_known,
       sum(timed) as timed, sum(total_us) as total_us, max(max_us) as max_us
from counts_of_files
group by run, fingerprint;

-- A comparison has at most 20,000 queries of each run: those that came first.
create or replace temporary view ranked as
select *, row_number() over (partition by run, fingerprint is null order by first_place) as query_number
from counts;

create or replace temporary view known as
select * from ranked where fingerprint is not null and query_number <= 20000;

-- The executions with a known time, numbered by query and run from 1 on.
create or replace temporary view offsets as
select run, file, fingerprint,
       coalesce(sum(timed) over (partition by run, fingerprint order by file
                                 rows between unbounded preceding and 1 preceding), 0) as timed_before
from counts_of_files
where fingerprint is not null and timed > 0;

create or replace temporary view numbered_in_files as
select run, file, fingerprint, at_us, service_us,
       row_number() over (partition by run, file, fingerprint order by place) as number_in_file
from executions
where fingerprint is not null and is_timed;

create or replace temporary view numbered as
select run, fingerprint, at_us, service_us,
       cast(timed_before + number_in_file as bigint) as number
from numbered_in_files
join offsets using (run, file, fingerprint);

-- A sample of up to 4,096 of them, drawn without a state (algorithm R with SplitMix64, seeded by the fingerprint): an
-- execution replaces the one before it in its slot, so the last one in a slot stays.
create or replace temporary view slots as
select *, case when number <= 4096 then number - 1 else howdah_slot(fingerprint, number) end as slot
from numbered;

create or replace temporary view last_in_slots as
select *, row_number() over (partition by run, fingerprint, slot order by number desc) as age
from slots
where slot < 4096;

-- Numbers are passed on as texts, because the two dialects have no common syntax of structs.
create or replace temporary view samples as
select fingerprint, array_agg(concat_ws(' ', run, slot, at_us, service_us)) as samples
from last_in_slots
where age = 1
group by fingerprint;

-- The distribution of all executions with a known time.
create or replace temporary view buckets as
select run, fingerprint, howdah_bucket(service_us) as bucket, count(*) as bucket_count
from executions
where fingerprint is not null and is_timed
group by run, fingerprint, howdah_bucket(service_us);

create or replace temporary view histograms as
select fingerprint, array_agg(concat_ws(' ', run, bucket, bucket_count)) as buckets
from buckets
group by fingerprint;

-- The failures by SQLSTATE, with the message of the first one.
create or replace temporary view errors as
select run, fingerprint, coalesce(sqlstate, '-') as code, count(*) as failures,
       min(place) as first_place, min_by(coalesce(error, ''), place) as message
from executions
where fingerprint is not null and disposition = 'failed'
group by run, fingerprint, coalesce(sqlstate, '-');

create or replace temporary view failures as
select fingerprint,
       array_agg(concat_ws(' ', run, code, failures, first_place, substr(message, 1, 500))) as errors
from errors
group by fingerprint;

create or replace temporary view totals as
select fingerprint,
       array_agg(concat_ws(' ', run, done, failed, skipped, total_rows, rows_known, timed, total_us, max_us)) as totals
from known
group by fingerprint;

-- One row for each query.
create or replace temporary view queries as
select fingerprint, totals, buckets, samples, errors
from totals
left join histograms using (fingerprint)
left join samples using (fingerprint)
left join failures using (fingerprint);

-- The text of each query. The statements of a part describe executions of that part only.
create or replace temporary view texts as
select fingerprint,
       min_by(coalesce(substr(query, 1, 4096), ''), preference) as query,
       min_by(coalesce(user_name, ''), preference) as user_name,
       min_by(coalesce(database_name, ''), preference) as database_name
from statements
join (select distinct run, part, fingerprint from counts_of_files) as executed using (run, part, fingerprint)
group by fingerprint;

-- Executions that belong to no query of the comparison, by run. Skipped ones do not count.
create or replace temporary view unattributed as
select run, sum(done + failed) as executions
from ranked
where fingerprint is null or query_number > 20000
group by run;
