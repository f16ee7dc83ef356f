# What Debian 12 has, in place of packages of these names: conan create cmake/conan -pr default -pr cmake/conan/system.profile
[platform_requires]
nlohmann_json/3.11.2
range-v3/0.12.0
metis/5.1.0
eigen/3.4.0

[platform_tool_requires]
cmake/3.25.1
