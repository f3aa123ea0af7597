{
  port: 8125,
  mgmt_port: 8126,
  backends: [ "./backends/console" ]
}
