-- For the administrator, as cli_filter.lua beside slurm.conf, with CliFilterPlugins=cli_filter/lua.
-- Slurm sends the SIGTERM that begins the grace time of a preemption to steps only. A batch script
-- of a job with --stasis gets one by this signal, which needs
-- SlurmctldParameters=preempt_send_user_signal. It comes a minute before the time limit, too.
function slurm_cli_setup_defaults(options, early)
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, offset)
  local given = options["spank"] and options["spank"]["stasis"]
  local is_batch = options["type"] == "sbatch"
  local wanted = given and given["stasis"] and given["stasis"] ~= "off"
  if is_batch and wanted and options["signal"] == "0@0" then
    options["signal"] = "B:TERM@60"
  end
  return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job, step)
  return slurm.SUCCESS
end
