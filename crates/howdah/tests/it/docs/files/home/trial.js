{
  port: 8225, mgmt_port: 8226, mgmt_address: "127.0.0.1",
  backends: [ "./backends/console" ]
}
