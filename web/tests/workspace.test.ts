import { describe, expect, it } from "vitest";

import type { Operation, Phase, RecoveryOption } from "../src/types";
import { actionSlots, actionsFor, asksHowToRecover, isWaiting, nextDeadline, select } from "../src/workspace";
import { workspace } from "./samples";

describe("the actions of the owner", () => {
  const table: Array<[Phase, string[]]> = [
    ["RUNNING", ["open", "stop", "extend", "archive", "delete"]],
    ["STANDBY", ["open", "start", "extend", "archive", "delete"]],
    ["ARCHIVED", ["open", "start", "restore", "delete"]],
    ["PENDING", ["open", "start", "delete"]],
    ["ERROR", ["delete"]],
    ["DELETING", []],
  ];
  it.each(table)("in %s", (phase, actions) => {
    expect(actionsFor(workspace({ phase, desired_state: "STANDBY" }), "owner")).toEqual(actions);
  });

  const cancellable: Array<[Operation, boolean]> = [
    ["PROVISIONING", true],
    ["RESTORING", true],
    ["STARTING", true],
    ["ARCHIVING", true],
    ["STOPPING", false],
    ["CREATE_EMPTY_ARCHIVE", false],
    ["DELETING", false],
  ];
  it.each(cancellable)("during %s, cancel: %s", (operation, offered) => {
    const actions = actionsFor(workspace({ operation, desired_state: "ARCHIVED" }), "owner");
    expect(actions).toEqual(offered ? ["cancel"] : []);
  });

  it("does not offer to cancel the archiving of a delete", () => {
    const deleting = workspace({
      operation: "ARCHIVING",
      desired_state: "DELETED",
      deleted_at: "2026-01-01T00:00:00Z",
    });
    expect(actionsFor(deleting, "owner")).toEqual([]);
  });

  it("can stop a start that waits for its retry", () => {
    const waiting = workspace({ phase: "STANDBY", desired_state: "RUNNING" });
    expect(isWaiting(waiting)).toBe(true);
    expect(actionsFor(waiting, "owner")).toContain("stop");
    expect(actionsFor(waiting, "owner")).not.toContain("start");
  });

  it("in the trash, undelete and delete permanently, except during an operation", () => {
    const deleted = { phase: "DELETED", deleted_at: "2026-01-01T00:00:00Z" } as const;
    expect(actionsFor(workspace(deleted), "owner")).toEqual(["undelete", "delete"]);
    expect(actionsFor(workspace({ ...deleted, operation: "ARCHIVING" }), "owner")).toEqual([]);
  });
});

describe("recovery", () => {
  const failed = (...ways_out: RecoveryOption[]) =>
    workspace({ phase: "ERROR", desired_state: "RUNNING", ways_out });
  it("is offered if the server reports an option", () => {
    for (const viewer of ["owner", "admin"] as const) {
      expect(actionsFor(failed("look_again"), viewer)).toEqual(["recover", "delete"]);
      expect(actionsFor(failed(), viewer)).toEqual(["delete"]);
    }
  });
  it("asks for a choice unless a retry is the only option", () => {
    expect(asksHowToRecover(failed("look_again"))).toBe(false);
    expect(asksHowToRecover(failed("home"))).toBe(true);
    expect(asksHowToRecover(failed("archive", "empty"))).toBe(true);
    expect(asksHowToRecover(failed("look_again", "archive", "empty"))).toBe(true);
  });
});

describe("the slots of the buttons", () => {
  const phases: Phase[] = ["PENDING", "ARCHIVED", "STANDBY", "RUNNING", "ERROR"];
  const slots = phases.map((phase) =>
    actionSlots(actionsFor(workspace({ phase, desired_state: phase as never }), "owner")),
  );
  it("hold every action once", () => {
    for (const phase of phases) {
      const actions = actionsFor(workspace({ phase, desired_state: phase as never }), "owner");
      expect(actionSlots(actions).filter(Boolean).sort()).toEqual([...actions].sort());
    }
  });
  it("keep delete and open where they are", () => {
    for (const slot of slots) {
      expect(slot.indexOf("delete")).toBe(4);
      expect([0, -1]).toContain(slot.indexOf("open"));
    }
  });
});

describe("the actions of an admin on another user's workspace", () => {
  it.each<[Phase, string[]]>([
    ["RUNNING", ["stop", "delete"]],
    ["STANDBY", ["delete"]],
    ["ARCHIVED", ["delete"]],
    ["ERROR", ["delete"]],
  ])("in %s: neither open nor start", (phase, actions) => {
    expect(actionsFor(workspace({ phase, desired_state: "STANDBY" }), "admin")).toEqual(actions);
  });
});

describe("deadlines", () => {
  const dates = { standby_at: "2026-01-01T01:00:00Z", archive_at: "2026-01-01T02:00:00Z" };
  it("is the standby time of a running workspace", () => {
    expect(nextDeadline(workspace({ phase: "RUNNING", ...dates }))?.kind).toBe("standby");
  });
  it("is the archive time of a paused workspace", () => {
    expect(nextDeadline(workspace({ phase: "STANDBY", ...dates }))?.kind).toBe("archive");
  });
  it("is none while an operation runs", () => {
    expect(nextDeadline(workspace({ phase: "RUNNING", operation: "STOPPING", ...dates }))).toBeNull();
  });
});

describe("the list", () => {
  const list = [
    workspace({
      id: "a",
      name: "item 10",
      phase: "ARCHIVED",
      desired_state: "ARCHIVED",
      last_access_at: "2026-01-03T00:00:00Z",
    }),
    workspace({ id: "b", name: "item 9", phase: "RUNNING" }),
    workspace({ id: "c", name: "other", phase: "ERROR", description: "payments" }),
  ];
  const ids = (selection: Parameters<typeof select>[1], found: string[] = []) =>
    select(list, selection, new Set(found)).map((item) => item.id);

  it("finds every word in name or description", () => {
    expect(ids({ query: "PAYMENT", phase: "", sort: "name" })).toEqual(["c"]);
    expect(ids({ query: "other payment", phase: "", sort: "name" })).toEqual(["c"]);
    expect(ids({ query: "item payment", phase: "", sort: "name" })).toEqual([]);
  });
  it("shows workspaces that the server found by memo, within the phase", () => {
    expect(ids({ query: "payment", phase: "", sort: "name" }, ["b"])).toEqual(["b", "c"]);
    expect(ids({ query: "payment", phase: "ERROR", sort: "name" }, ["b"])).toEqual(["c"]);
  });
  it("filters by phase", () => {
    expect(ids({ query: "", phase: "ARCHIVED", sort: "name" })).toEqual(["a"]);
  });
  it("sorts numbers in names by value", () => {
    expect(ids({ query: "", phase: "", sort: "name" })).toEqual(["b", "a", "c"]);
  });
  it("puts running workspaces first, then by last use, and errors first by phase", () => {
    expect(ids({ query: "", phase: "", sort: "activity" }).slice(0, 2)).toEqual(["b", "a"]);
    expect(ids({ query: "", phase: "", sort: "phase" })[0]).toBe("c");
  });
});
