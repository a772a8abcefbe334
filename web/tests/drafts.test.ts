import { beforeEach, describe, expect, it } from "vitest";

import { clearDrafts, draftField } from "../src/state/drafts";

beforeEach(clearDrafts);

describe("a draft", () => {
  const field = (server: string) => draftField("id/memo", server);

  it("has the server's value until the user types", () => {
    expect(field("old")).toMatchObject({ value: "old", dirty: false });
    expect(field("newer")).toMatchObject({ value: "newer", dirty: false });
  });

  it("survives a change on the server, and reports the conflict", () => {
    field("old").set("mine");
    expect(field("theirs")).toMatchObject({ value: "mine", dirty: true, conflict: true });
    field("theirs").discard();
    expect(field("theirs")).toMatchObject({ value: "theirs", dirty: false, conflict: false });
  });

  it("ends when it is saved", () => {
    field("old").set("mine");
    field("mine").saved("mine");
    expect(field("mine")).toMatchObject({ value: "mine", dirty: false });
  });

  it("keeps text typed during the save", () => {
    field("old").set("mine");
    field("old").set("mine, and more");
    field("mine").saved("mine");
    expect(field("mine")).toMatchObject({ value: "mine, and more", dirty: true, conflict: false });
  });
});
