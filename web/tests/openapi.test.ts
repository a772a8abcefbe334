import { describe, expect, it } from "vitest";

import { type ApiDocument, groupsOf, typeName } from "../src/openapi";

const document: ApiDocument = {
  paths: {
    "/api/v1/things/{id}": {
      patch: {
        summary: "Change Thing",
        tags: ["things"],
        parameters: [{ name: "id", in: "path", required: true, schema: { type: "string" } }],
        requestBody: { content: { "application/json": { schema: { $ref: "#/components/schemas/Change" } } } },
        responses: {
          "200": { content: { "application/json": { schema: { $ref: "#/components/schemas/Thing" } } } },
          "404": { content: { "application/json": { schema: { $ref: "#/components/schemas/Error" } } } },
        },
      },
    },
    "/healthz": { get: { tags: ["health"], responses: { "200": {} } } },
  },
  components: {
    schemas: {
      Change: { properties: { name: { type: "string" } }, required: ["name"] },
      Thing: { properties: { tags: { type: "array", items: { type: "string" } } } },
    },
  },
};

describe("the OpenAPI document", () => {
  it("is grouped by tag, with the fields of each request and response", () => {
    const [things, health] = groupsOf(document);
    expect(things?.tag).toBe("things");
    const [change] = things!.operations;
    expect(change).toMatchObject({ method: "PATCH", path: "/api/v1/things/{id}", summary: "Change Thing" });
    expect(change!.fields).toEqual([
      { name: "id", type: "string", required: true, location: "path" },
      { name: "name", type: "string", required: true, location: "body" },
    ]);
    expect(change!.response).toEqual([
      { name: "tags", type: "list of string", required: false, location: "body" },
    ]);
    expect(health!.operations[0]).toMatchObject({ method: "GET", fields: [], response: [] });
  });

  it.each([
    [{ type: "integer" }, "integer"],
    [{ anyOf: [{ type: "string", format: "date-time" }, { type: "null" }] }, "date-time or null"],
    [{ enum: ["user", "admin"] }, '"user" or "admin"'],
    [{ $ref: "#/components/schemas/Thing" }, "Thing"],
    [{}, "anything"],
  ])("has the type %j as text", (schema, name) => {
    expect(typeName(schema)).toBe(name);
  });
});
