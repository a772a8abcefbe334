"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const problem = document.getElementById("problem");

async function ask(button) {
  button.disabled = true;
  problem.hidden = true;
  try {
    const answer = await fetch(button.dataset.path, {
      method: button.dataset.method,
      headers: { "Content-Type": "application/json" },
      body: button.dataset.body,
    });
    if (answer.ok) return location.reload();
    const said = await answer.json();
    problem.textContent = said.error.message;
  } catch {
    problem.textContent = data.unreachable;
  }
  problem.hidden = false;
  button.disabled = false;
}

for (const button of document.querySelectorAll("button[data-path]")) {
  button.addEventListener("click", (event) => {
    event.preventDefault(); // the form around it is for those without this script
    ask(button);
  });
}

function show(workspace) {
  const bar = document.querySelector("progress");
  const moved = workspace.progress;
  if (moved && moved.total) {
    bar.max = moved.total;
    bar.value = moved.bytes;
  } else {
    bar.removeAttribute("value");
  }
  const waiting = workspace.operation === "NONE" ? data.words.WAITING : data.words[workspace.operation];
  const amount = moved && moved.bytes ? ` (${(moved.bytes / 1e6).toFixed(1)} MB)` : "";
  document.getElementById("step").textContent = waiting + amount;
  problem.textContent = workspace.error_message ?? "";
  problem.hidden = !workspace.error_message;
}

function isSettled(workspace) {
  if (workspace.operation !== "NONE") return false;
  return workspace.phase === "RUNNING" || workspace.phase === "ERROR" || workspace.desired_state !== "RUNNING";
}

async function watch() {
  try {
    const answer = await fetch(data.poll, { cache: "no-store" });
    if (answer.status === 401 || answer.status === 404) return location.reload();
    if (answer.ok) {
      const workspace = await answer.json();
      if (isSettled(workspace)) return location.reload();
      show(workspace);
    }
  } catch {
    document.getElementById("step").textContent = data.unreachable;
  }
  setTimeout(watch, 1000);
}

// Asked without navigating: a tab that is left open must not wake its workspace.
async function knock() {
  try {
    const answer = await fetch(location.href, { cache: "no-store", redirect: "manual" });
    if (answer.status === 503) return;
    if (answer.status !== 502) return location.reload();
  } catch {
    // CodeHub itself is away; it is asked again.
  }
  setTimeout(knock, 2000);
}

if (data.knock) setTimeout(knock, 1000);
if (data.poll) setTimeout(watch, 500);
if (data.reload) setTimeout(() => location.reload(), 2000);
