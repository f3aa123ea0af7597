# Session state of Rails (ActiveRecord): each client is a thread with a connection of its own.
require "active_record"

CLIENTS = Integer(ENV.fetch("CLIENTS", "50"))
ROUNDS = 60
Thread.abort_on_exception = true

ActiveRecord::Base.establish_connection(
  adapter: "postgresql", host: ENV["PGHOST"], port: ENV["PGPORT"], username: ENV["PGUSER"],
  password: ENV["PGPASSWORD"], database: ENV["PGDATABASE"], pool: CLIENTS + 1, checkout_timeout: 60,
  # Rails sets these, and client_min_messages, when it connects.
  variables: { statement_timeout: "60s", work_mem: "777kB" }
)
ActiveRecord::Base.connection.create_table(:state_rails, force: true) do |table|
  table.integer :client
  table.string :note
end

class Note < ActiveRecord::Base
  self.table_name = "state_rails"
end

def check(found, expected)
  raise "found #{found.inspect}, expected #{expected.inspect}" unless found == expected
end

def advisory_lock(db, me)
  check(db.get_advisory_lock(me), true)
  check(db.select_value("select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"), 1)
  check(db.release_advisory_lock(me), true)
end

def temporary_table(db, me)
  db.create_table(:own, temporary: true) { |table| table.integer :number }
  db.execute("insert into own (number) values (#{me})")
  check(db.select_value("select number from own"), me)
  db.drop_table(:own, temporary: true)
end

def client(me)
  ActiveRecord::Base.connection_pool.with_connection do |db|
    db.execute("set application_name = 'rails-#{me}'")
    ROUNDS.times do |turn|
      Note.create!(client: me, note: "note #{turn}")
      check(Note.where(client: me).count, turn + 1)
      Note.transaction do
        Note.transaction(requires_new: true) do
          Note.create!(client: me, note: "undone")
          raise ActiveRecord::Rollback
        end
      end
      check(db.select_value("show client_min_messages"), "warning")
      check(db.select_value("show work_mem"), "777kB")
      check(db.select_value("show application_name"), "rails-#{me}")
      if turn % 15 == me % 15
        me.even? ? advisory_lock(db, me) : temporary_table(db, me)
      end
      sleep 0.03
    end
  end
end

CLIENTS.times.map { |me| Thread.new { client(me) } }.each(&:join)
puts "ActiveRecord #{ActiveRecord.version}, session state: #{CLIENTS} clients ok"
