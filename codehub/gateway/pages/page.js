"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const problem = document.getElementById("problem");

async function send(button) {
  button.disabled = true;
  problem.hidden = true;
  try {
    const answer = await fetch(button.dataset.path, {
      method: button.dataset.method,
      headers: { "Content-Type": "application/json" },
      body: button.dataset.body,
    });
    if (answer.ok) return location.reload();
    const body = await answer.json();
    problem.textContent = body.error.message;
  } catch {
    problem.textContent = data.unreachable;
  }
  problem.hidden = false;
  button.disabled = false;
}

for (const button of document.querySelectorAll("button[data-path]")) {
  button.addEventListener("click", (event) => {
    event.preventDefault(); // the form around it is for browsers without scripts
    send(button);
  });
}

function show(workspace) {
  const bar = document.querySelector("progress");
  const progress = workspace.progress;
  if (progress && progress.total) {
    bar.max = progress.total;
    bar.value = progress.bytes;
  } else {
    bar.removeAttribute("value");
  }
  const step = workspace.operation === "NONE" ? data.steps.WAITING : data.steps[workspace.operation];
  const amount = progress && progress.bytes ? ` (${(progress.bytes / 1e6).toFixed(1)} MB)` : "";
  document.getElementById("step").textContent = step + amount;
  problem.textContent = workspace.error_message ?? "";
  problem.hidden = !workspace.error_message;
}

function isSettled(workspace) {
  if (workspace.operation !== "NONE") return false;
  return workspace.phase === "RUNNING" || workspace.phase === "ERROR" || workspace.desired_state !== "RUNNING";
}

async function pollWorkspace() {
  try {
    const answer = await fetch(data.pollWorkspace, { cache: "no-store" });
    if (answer.status === 401 || answer.status === 404) return location.reload();
    if (answer.ok) {
      const workspace = await answer.json();
      if (isSettled(workspace)) return location.reload();
      show(workspace);
    }
  } catch {
    document.getElementById("step").textContent = data.unreachable;
  }
  setTimeout(pollWorkspace, 1000);
}

// This is not a navigation: a tab that is left open must not wake its workspace.
async function pollPort() {
  try {
    const answer = await fetch(location.href, { cache: "no-store", redirect: "manual" });
    if (answer.status === 503) return;
    if (answer.status !== 502) return location.reload();
  } catch {
    // CodeHub does not answer: try again.
  }
  setTimeout(pollPort, 2000);
}

if (data.pollPort) setTimeout(pollPort, 1000);
if (data.pollWorkspace) setTimeout(pollWorkspace, 500);
if (data.reload) setTimeout(() => location.reload(), 2000);
