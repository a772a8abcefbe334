/** The OpenAPI document, converted to what the API page shows. */

export interface Schema {
  $ref?: string;
  type?: string;
  format?: string;
  enum?: unknown[];
  const?: unknown;
  items?: Schema;
  anyOf?: Schema[];
  additionalProperties?: boolean | Schema;
  properties?: Record<string, Schema>;
  required?: string[];
  description?: string;
  default?: unknown;
}

interface Content {
  content?: Record<string, { schema?: Schema }>;
}

interface RawParameter {
  name: string;
  in: string;
  required?: boolean;
  schema?: Schema;
}

interface RawOperation {
  summary?: string;
  description?: string;
  tags?: string[];
  parameters?: RawParameter[];
  requestBody?: Content;
  responses?: Record<string, Content & { description?: string }>;
}

export interface ApiDocument {
  paths: Record<string, Record<string, RawOperation>>;
  components?: { schemas?: Record<string, Schema> };
}

export interface Field {
  name: string;
  type: string;
  /** Requests only. */
  required: boolean;
  location: "path" | "query" | "header" | "body";
}

export interface Operation {
  id: string;
  method: string;
  path: string;
  summary: string;
  description: string;
  fields: Field[];
  response: Field[];
}

export interface Group {
  tag: string;
  operations: Operation[];
}

export function groupsOf(document: ApiDocument): Group[] {
  const groups = new Map<string, Operation[]>();
  for (const [path, methods] of Object.entries(document.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const tag = operation.tags?.[0] ?? "";
      groups.set(tag, [...(groups.get(tag) ?? []), operationOf(document, path, method, operation)]);
    }
  }
  return [...groups].map(([tag, operations]) => ({ tag, operations }));
}

function operationOf(
  document: ApiDocument,
  path: string,
  method: string,
  operation: RawOperation,
): Operation {
  const parameters = (operation.parameters ?? []).map((parameter) => ({
    name: parameter.name,
    type: typeName(parameter.schema ?? {}),
    required: parameter.required ?? false,
    location: parameter.in as Field["location"],
  }));
  const success = Object.entries(operation.responses ?? {}).find(([code]) => code.startsWith("2"))?.[1];
  return {
    id: `${method}-${path}`.replace(/[^a-z0-9]+/gi, "-"),
    method: method.toUpperCase(),
    path,
    summary: operation.summary ?? "",
    description: operation.description ?? "",
    fields: [...parameters, ...fieldsOf(document, schemaOf(operation.requestBody))],
    response: fieldsOf(document, schemaOf(success)).map((field) => ({ ...field, required: false })),
  };
}

const schemaOf = (content: Content | undefined): Schema =>
  content?.content?.["application/json"]?.schema ?? {};

function fieldsOf(document: ApiDocument, schema: Schema): Field[] {
  const resolved = resolve(document, schema);
  return Object.entries(resolved.properties ?? {}).map(([name, property]) => ({
    name,
    type: typeName(property),
    required: resolved.required?.includes(name) ?? false,
    location: "body",
  }));
}

/** Follows references, and the only alternative that is not null. */
function resolve(document: ApiDocument, schema: Schema): Schema {
  const alternatives = schema.anyOf?.filter((item) => item.type !== "null");
  if (alternatives?.length === 1) return resolve(document, alternatives[0]!);
  const name = schema.$ref?.split("/").at(-1);
  return name ? (document.components?.schemas?.[name] ?? {}) : schema;
}

/** Returns a type as text: `string`, `integer or null`, `list of WorkspaceView`. */
export function typeName(schema: Schema): string {
  if (schema.$ref) return schema.$ref.split("/").at(-1)!;
  if (schema.anyOf) return schema.anyOf.map(typeName).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return `list of ${typeName(schema.items ?? {})}`;
  if (schema.type === "string" && schema.format) return schema.format;
  return schema.type ?? "anything";
}
